// SPDX-License-Identifier: Apache-2.0
// What MPItrampoline's ABI 2.10 names beside what is here (abi.h, mpi.cpp). It refuses a library
// that lacks one of them.
#pragma once

// clang-format off
// Functions that answer with an error: nothing that runs on this library calls them.
#define TW_MPI_MISSING(NAME)                                                                      \
  NAME(Abort) NAME(Accumulate) NAME(Add_error_class) NAME(Add_error_code)                         \
  NAME(Add_error_string) NAME(Aint_add) NAME(Aint_diff) NAME(Allgatherv) NAME(Alloc_mem)          \
  NAME(Alltoall) NAME(Alltoallv) NAME(Alltoallw) NAME(Bcast) NAME(Bsend) NAME(Bsend_init)         \
  NAME(Buffer_attach) NAME(Buffer_detach) NAME(Cancel) NAME(Cart_coords) NAME(Cart_create)        \
  NAME(Cart_get) NAME(Cart_map) NAME(Cart_rank) NAME(Cart_shift) NAME(Cart_sub)                   \
  NAME(Cartdim_get) NAME(Close_port) NAME(Comm_accept) NAME(Comm_c2f)                             \
  NAME(Comm_call_errhandler) NAME(Comm_compare) NAME(Comm_connect) NAME(Comm_create)              \
  NAME(Comm_create_errhandler) NAME(Comm_create_group) NAME(Comm_create_keyval)                   \
  NAME(Comm_delete_attr) NAME(Comm_disconnect) NAME(Comm_dup) NAME(Comm_dup_with_info)            \
  NAME(Comm_f2c) NAME(Comm_free_keyval) NAME(Comm_get_attr) NAME(Comm_get_errhandler)             \
  NAME(Comm_get_info) NAME(Comm_get_name) NAME(Comm_get_parent) NAME(Comm_group)                  \
  NAME(Comm_idup) NAME(Comm_join) NAME(Comm_remote_group) NAME(Comm_remote_size)                  \
  NAME(Comm_set_attr) NAME(Comm_set_errhandler) NAME(Comm_set_info) NAME(Comm_set_name)           \
  NAME(Comm_spawn) NAME(Comm_spawn_multiple) NAME(Comm_split_type) NAME(Comm_test_inter)          \
  NAME(Compare_and_swap) NAME(Dims_create) NAME(Dist_graph_create)                                \
  NAME(Dist_graph_create_adjacent) NAME(Dist_graph_neighbors) NAME(Dist_graph_neighbors_count)    \
  NAME(Errhandler_c2f) NAME(Errhandler_f2c) NAME(Errhandler_free) NAME(Error_class)               \
  NAME(Exscan) NAME(Fetch_and_op) NAME(File_c2f) NAME(File_call_errhandler) NAME(File_close)      \
  NAME(File_create_errhandler) NAME(File_delete) NAME(File_f2c) NAME(File_get_amode)              \
  NAME(File_get_atomicity) NAME(File_get_byte_offset) NAME(File_get_errhandler)                   \
  NAME(File_get_group) NAME(File_get_info) NAME(File_get_position)                                \
  NAME(File_get_position_shared) NAME(File_get_size) NAME(File_get_type_extent)                   \
  NAME(File_get_view) NAME(File_iread) NAME(File_iread_all) NAME(File_iread_at)                   \
  NAME(File_iread_at_all) NAME(File_iread_shared) NAME(File_iwrite) NAME(File_iwrite_all)         \
  NAME(File_iwrite_at) NAME(File_iwrite_at_all) NAME(File_iwrite_shared) NAME(File_open)          \
  NAME(File_preallocate) NAME(File_read) NAME(File_read_all) NAME(File_read_all_begin)            \
  NAME(File_read_all_end) NAME(File_read_at) NAME(File_read_at_all)                               \
  NAME(File_read_at_all_begin) NAME(File_read_at_all_end) NAME(File_read_ordered)                 \
  NAME(File_read_ordered_begin) NAME(File_read_ordered_end) NAME(File_read_shared)                \
  NAME(File_seek) NAME(File_seek_shared) NAME(File_set_atomicity) NAME(File_set_errhandler)       \
  NAME(File_set_info) NAME(File_set_size) NAME(File_set_view) NAME(File_sync) NAME(File_write)    \
  NAME(File_write_all) NAME(File_write_all_begin) NAME(File_write_all_end) NAME(File_write_at)    \
  NAME(File_write_at_all) NAME(File_write_at_all_begin) NAME(File_write_at_all_end)               \
  NAME(File_write_ordered) NAME(File_write_ordered_begin) NAME(File_write_ordered_end)            \
  NAME(File_write_shared) NAME(Free_mem) NAME(Gather) NAME(Gatherv) NAME(Get)                     \
  NAME(Get_accumulate) NAME(Get_address) NAME(Get_count) NAME(Get_elements)                       \
  NAME(Get_elements_x) NAME(Get_processor_name) NAME(Graph_create) NAME(Graph_get)                \
  NAME(Graph_map) NAME(Graph_neighbors) NAME(Graph_neighbors_count) NAME(Graphdims_get)           \
  NAME(Grequest_complete) NAME(Grequest_start) NAME(Group_c2f) NAME(Group_compare)                \
  NAME(Group_difference) NAME(Group_excl) NAME(Group_f2c) NAME(Group_free) NAME(Group_incl)       \
  NAME(Group_intersection) NAME(Group_range_excl) NAME(Group_range_incl) NAME(Group_rank)         \
  NAME(Group_size) NAME(Group_translate_ranks) NAME(Group_union) NAME(Iallgather)                 \
  NAME(Iallgatherv) NAME(Iallreduce) NAME(Ialltoall) NAME(Ialltoallv) NAME(Ialltoallw)            \
  NAME(Ibarrier) NAME(Ibcast) NAME(Ibsend) NAME(Iexscan) NAME(Igather) NAME(Igatherv)             \
  NAME(Improbe) NAME(Imrecv) NAME(Ineighbor_allgather) NAME(Ineighbor_allgatherv)                 \
  NAME(Ineighbor_alltoall) NAME(Ineighbor_alltoallv) NAME(Ineighbor_alltoallw) NAME(Info_c2f)     \
  NAME(Info_create) NAME(Info_delete) NAME(Info_dup) NAME(Info_f2c) NAME(Info_free)               \
  NAME(Info_get) NAME(Info_get_nkeys) NAME(Info_get_nthkey) NAME(Info_get_valuelen)               \
  NAME(Info_set) NAME(Intercomm_create) NAME(Intercomm_merge) NAME(Iprobe) NAME(Ireduce)          \
  NAME(Ireduce_scatter) NAME(Ireduce_scatter_block) NAME(Irsend) NAME(Iscan) NAME(Iscatter)       \
  NAME(Iscatterv) NAME(Issend) NAME(Lookup_name) NAME(Message_c2f) NAME(Message_f2c)              \
  NAME(Mprobe) NAME(Mrecv) NAME(Neighbor_allgather) NAME(Neighbor_allgatherv)                     \
  NAME(Neighbor_alltoall) NAME(Neighbor_alltoallv) NAME(Neighbor_alltoallw) NAME(Op_c2f)          \
  NAME(Op_commutative) NAME(Op_create) NAME(Op_f2c) NAME(Op_free) NAME(Open_port) NAME(Pack)      \
  NAME(Pack_external) NAME(Pack_external_size) NAME(Pack_size) NAME(Probe) NAME(Publish_name)     \
  NAME(Put) NAME(Raccumulate) NAME(Recv) NAME(Recv_init) NAME(Reduce) NAME(Reduce_local)          \
  NAME(Reduce_scatter_block) NAME(Register_datarep) NAME(Request_c2f) NAME(Request_f2c)           \
  NAME(Request_free) NAME(Request_get_status) NAME(Rget) NAME(Rget_accumulate) NAME(Rput)         \
  NAME(Rsend) NAME(Rsend_init) NAME(Scan) NAME(Scatter) NAME(Scatterv) NAME(Send)                 \
  NAME(Send_init) NAME(Sendrecv_replace) NAME(Ssend) NAME(Ssend_init) NAME(Start)                 \
  NAME(Startall) NAME(Status_c2f) NAME(Status_f2c) NAME(Status_set_cancelled)                     \
  NAME(Status_set_elements) NAME(Status_set_elements_x) NAME(Test) NAME(Test_cancelled)           \
  NAME(Testall) NAME(Testany) NAME(Testsome) NAME(Topo_test) NAME(Type_c2f) NAME(Type_commit)     \
  NAME(Type_contiguous) NAME(Type_create_darray) NAME(Type_create_f90_complex)                    \
  NAME(Type_create_f90_integer) NAME(Type_create_f90_real) NAME(Type_create_hindexed)             \
  NAME(Type_create_hindexed_block) NAME(Type_create_hvector) NAME(Type_create_indexed_block)      \
  NAME(Type_create_keyval) NAME(Type_create_resized) NAME(Type_create_struct)                     \
  NAME(Type_create_subarray) NAME(Type_delete_attr) NAME(Type_dup) NAME(Type_f2c)                 \
  NAME(Type_free) NAME(Type_free_keyval) NAME(Type_get_attr) NAME(Type_get_contents)              \
  NAME(Type_get_envelope) NAME(Type_get_extent) NAME(Type_get_extent_x) NAME(Type_get_name)       \
  NAME(Type_get_true_extent) NAME(Type_get_true_extent_x) NAME(Type_indexed)                      \
  NAME(Type_match_size) NAME(Type_set_attr) NAME(Type_set_name) NAME(Type_size)                   \
  NAME(Type_size_x) NAME(Type_struct) NAME(Type_vector) NAME(Unpack) NAME(Unpack_external)        \
  NAME(Unpublish_name) NAME(Waitall) NAME(Waitany) NAME(Waitsome) NAME(Win_allocate)              \
  NAME(Win_allocate_shared) NAME(Win_attach) NAME(Win_c2f) NAME(Win_call_errhandler)              \
  NAME(Win_complete) NAME(Win_create) NAME(Win_create_dynamic) NAME(Win_create_errhandler)        \
  NAME(Win_create_keyval) NAME(Win_delete_attr) NAME(Win_detach) NAME(Win_f2c) NAME(Win_fence)    \
  NAME(Win_flush) NAME(Win_flush_all) NAME(Win_flush_local) NAME(Win_flush_local_all)             \
  NAME(Win_free) NAME(Win_free_keyval) NAME(Win_get_attr) NAME(Win_get_errhandler)                \
  NAME(Win_get_group) NAME(Win_get_info) NAME(Win_get_name) NAME(Win_lock) NAME(Win_lock_all)     \
  NAME(Win_post) NAME(Win_set_attr) NAME(Win_set_errhandler) NAME(Win_set_info)                   \
  NAME(Win_set_name) NAME(Win_shared_query) NAME(Win_start) NAME(Win_sync) NAME(Win_test)         \
  NAME(Win_unlock) NAME(Win_unlock_all) NAME(Win_wait) NAME(Wtick) NAME(Wtime)

// Constants that mean nothing here, each with a value of its own.
#define TW_MPI_OTHER_CONSTANTS(NAME)                                                              \
  NAME(2DOUBLE_PRECISION) NAME(2INT) NAME(2INTEGER) NAME(2REAL) NAME(AINT) NAME(ANY_SOURCE)       \
  NAME(ANY_TAG) NAME(APPNUM) NAME(ARGVS_NULL) NAME(ARGV_NULL) NAME(BOTTOM) NAME(BSEND_OVERHEAD)   \
  NAME(CART) NAME(CHAR) NAME(CHARACTER) NAME(COMBINER_CONTIGUOUS) NAME(COMBINER_DARRAY)           \
  NAME(COMBINER_DUP) NAME(COMBINER_F90_COMPLEX) NAME(COMBINER_F90_INTEGER)                        \
  NAME(COMBINER_F90_REAL) NAME(COMBINER_HINDEXED) NAME(COMBINER_HINDEXED_BLOCK)                   \
  NAME(COMBINER_HVECTOR) NAME(COMBINER_INDEXED) NAME(COMBINER_INDEXED_BLOCK)                      \
  NAME(COMBINER_NAMED) NAME(COMBINER_RESIZED) NAME(COMBINER_STRUCT) NAME(COMBINER_SUBARRAY)       \
  NAME(COMBINER_VECTOR) NAME(COMM_DUP_FN) NAME(COMM_NULL_COPY_FN) NAME(COMM_NULL_DELETE_FN)       \
  NAME(COMM_SELF) NAME(COMM_TYPE_SHARED) NAME(COMPLEX) NAME(COMPLEX16) NAME(COMPLEX32)            \
  NAME(COMPLEX8) NAME(CONGRUENT) NAME(CONVERSION_FN_NULL) NAME(COUNT) NAME(CXX_BOOL)              \
  NAME(CXX_DOUBLE_COMPLEX) NAME(CXX_FLOAT_COMPLEX) NAME(CXX_LONG_DOUBLE_COMPLEX) NAME(C_BOOL)     \
  NAME(C_FLOAT_COMPLEX) NAME(C_LONG_DOUBLE_COMPLEX) NAME(DATATYPE_NULL)                           \
  NAME(DISPLACEMENT_CURRENT) NAME(DISTRIBUTE_BLOCK) NAME(DISTRIBUTE_CYCLIC)                       \
  NAME(DISTRIBUTE_DFLT_DARG) NAME(DISTRIBUTE_NONE) NAME(DIST_GRAPH) NAME(DOUBLE_COMPLEX)          \
  NAME(DOUBLE_INT) NAME(DOUBLE_PRECISION) NAME(DUP_FN) NAME(ERRCODES_IGNORE)                      \
  NAME(ERRHANDLER_NULL) NAME(ERRORS_ARE_FATAL) NAME(ERRORS_RETURN) NAME(ERR_ACCESS)               \
  NAME(ERR_AMODE) NAME(ERR_ASSERT) NAME(ERR_BAD_FILE) NAME(ERR_BASE) NAME(ERR_BUFFER)             \
  NAME(ERR_CONVERSION) NAME(ERR_DIMS) NAME(ERR_DISP) NAME(ERR_DUP_DATAREP) NAME(ERR_FILE)         \
  NAME(ERR_FILE_EXISTS) NAME(ERR_FILE_IN_USE) NAME(ERR_GROUP) NAME(ERR_INFO) NAME(ERR_INFO_KEY)   \
  NAME(ERR_INFO_NOKEY) NAME(ERR_INFO_VALUE) NAME(ERR_INTERN) NAME(ERR_IN_STATUS) NAME(ERR_IO)     \
  NAME(ERR_KEYVAL) NAME(ERR_LASTCODE) NAME(ERR_LOCKTYPE) NAME(ERR_NAME) NAME(ERR_NOT_SAME)        \
  NAME(ERR_NO_MEM) NAME(ERR_NO_SPACE) NAME(ERR_NO_SUCH_FILE) NAME(ERR_PENDING) NAME(ERR_PORT)     \
  NAME(ERR_QUOTA) NAME(ERR_RANK) NAME(ERR_READ_ONLY) NAME(ERR_RMA_ATTACH)                         \
  NAME(ERR_RMA_CONFLICT) NAME(ERR_RMA_FLAVOR) NAME(ERR_RMA_RANGE) NAME(ERR_RMA_SHARED)            \
  NAME(ERR_RMA_SYNC) NAME(ERR_ROOT) NAME(ERR_SERVICE) NAME(ERR_SIZE) NAME(ERR_SPAWN)              \
  NAME(ERR_TAG) NAME(ERR_TOPOLOGY) NAME(ERR_TRUNCATE) NAME(ERR_UNKNOWN)                           \
  NAME(ERR_UNSUPPORTED_DATAREP) NAME(ERR_WIN) NAME(FILE_NULL) NAME(FLOAT_INT)                     \
  NAME(F_STATUSES_IGNORE) NAME(F_STATUS_IGNORE) NAME(GRAPH) NAME(GROUP_EMPTY) NAME(GROUP_NULL)    \
  NAME(HOST) NAME(IDENT) NAME(INFO_ENV) NAME(INFO_NULL) NAME(INT) NAME(INTEGER) NAME(INTEGER1)    \
  NAME(INTEGER2) NAME(INTEGER4) NAME(INTEGER8) NAME(IO) NAME(KEYVAL_INVALID) NAME(LAND)           \
  NAME(LASTUSEDCODE) NAME(LOCK_EXCLUSIVE) NAME(LOCK_SHARED) NAME(LOGICAL) NAME(LONG)              \
  NAME(LONG_DOUBLE) NAME(LONG_DOUBLE_INT) NAME(LONG_INT) NAME(LONG_LONG) NAME(LONG_LONG_INT)      \
  NAME(LOR) NAME(LXOR) NAME(MAXLOC) NAME(MESSAGE_NO_PROC) NAME(MESSAGE_NULL) NAME(MINLOC)         \
  NAME(MODE_APPEND) NAME(MODE_CREATE) NAME(MODE_DELETE_ON_CLOSE) NAME(MODE_EXCL)                  \
  NAME(MODE_NOCHECK) NAME(MODE_NOPRECEDE) NAME(MODE_NOPUT) NAME(MODE_NOSTORE)                     \
  NAME(MODE_NOSUCCEED) NAME(MODE_RDONLY) NAME(MODE_RDWR) NAME(MODE_SEQUENTIAL)                    \
  NAME(MODE_UNIQUE_OPEN) NAME(MODE_WRONLY) NAME(NO_OP) NAME(NULL_COPY_FN) NAME(NULL_DELETE_FN)    \
  NAME(OFFSET) NAME(OP_NULL) NAME(ORDER_C) NAME(ORDER_FORTRAN) NAME(PACKED) NAME(REAL)            \
  NAME(REAL16) NAME(REAL4) NAME(REAL8) NAME(REPLACE) NAME(ROOT) NAME(SEEK_CUR) NAME(SEEK_END)     \
  NAME(SEEK_SET) NAME(SHORT) NAME(SHORT_INT) NAME(SIGNED_CHAR) NAME(SIMILAR) NAME(TAG_UB)         \
  NAME(TYPECLASS_COMPLEX) NAME(TYPECLASS_INTEGER) NAME(TYPECLASS_REAL) NAME(TYPE_DUP_FN)          \
  NAME(TYPE_NULL_COPY_FN) NAME(TYPE_NULL_DELETE_FN) NAME(UNEQUAL) NAME(UNIVERSE_SIZE)             \
  NAME(UNSIGNED) NAME(UNSIGNED_CHAR) NAME(UNSIGNED_LONG) NAME(UNSIGNED_LONG_LONG)                 \
  NAME(UNSIGNED_SHORT) NAME(UNWEIGHTED) NAME(WCHAR) NAME(WEIGHTS_EMPTY) NAME(WIN_BASE)            \
  NAME(WIN_CREATE_FLAVOR) NAME(WIN_DISP_UNIT) NAME(WIN_DUP_FN) NAME(WIN_FLAVOR_ALLOCATE)          \
  NAME(WIN_FLAVOR_CREATE) NAME(WIN_FLAVOR_DYNAMIC) NAME(WIN_FLAVOR_SHARED) NAME(WIN_MODEL)        \
  NAME(WIN_NULL) NAME(WIN_NULL_COPY_FN) NAME(WIN_NULL_DELETE_FN) NAME(WIN_SEPARATE)               \
  NAME(WIN_SIZE) NAME(WIN_UNIFIED) NAME(WTIME_IS_GLOBAL)
// clang-format on
